"""SPACE: what is measured, claimed and drawn."""
