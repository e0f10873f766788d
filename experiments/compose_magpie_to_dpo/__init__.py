"""Magpie data, preference pairs and DPO, end to end."""
