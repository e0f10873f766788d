"""F-Fidelity: what is measured and drawn."""
