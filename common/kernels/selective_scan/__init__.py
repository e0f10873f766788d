"""Mamba's selective scan and its companions: the causal convolution, and one step of the scan."""

from ritornello.common.kernels.selective_scan.convolution import causal_conv1d
from ritornello.common.kernels.selective_scan.operator import selective_scan
from ritornello.common.kernels.selective_scan.streaming import selective_state_update

__all__ = ["causal_conv1d", "selective_scan", "selective_state_update"]
