"""Magpie: what is measured, claimed and drawn."""
