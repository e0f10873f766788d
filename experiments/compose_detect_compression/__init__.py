"""Does Model Equality Testing notice a model that is served quantised, pruned or watermarked?"""
