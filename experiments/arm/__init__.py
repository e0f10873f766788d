"""ARM: what is measured, claimed and drawn."""
