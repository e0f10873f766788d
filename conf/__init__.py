"""Hydra configuration, read as pkg://ritornello.conf."""
