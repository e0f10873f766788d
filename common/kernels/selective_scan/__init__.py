"""Mamba's selective scan and its one-step companions."""

from ritornello.common.kernels.selective_scan.operator import selective_scan
from ritornello.common.kernels.selective_scan.streaming import causal_conv1d, selective_state_update

__all__ = ["causal_conv1d", "selective_scan", "selective_state_update"]
