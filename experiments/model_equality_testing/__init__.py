"""Model Equality Testing measured: power on exact chains and on SmolLM2, distances, audits."""
