"""K-HALU: what is measured, claimed and drawn."""
