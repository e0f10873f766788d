"""Architectures that several papers train."""
