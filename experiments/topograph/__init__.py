"""Topograph measured: topology of trained segmentations, the guarantee, and the loss's time."""
