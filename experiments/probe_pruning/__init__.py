"""Probe Pruning measured: perplexity, agreement with full-batch probing, cost, multiple choice."""
