"""The round, Algorithm 1 of the paper, and the values that it is made of."""
