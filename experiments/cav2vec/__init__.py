"""CAV2vec: what is measured, claimed and drawn."""
