"""CAV2vec: robust audio-visual speech representations by multi-task corrupted prediction."""
