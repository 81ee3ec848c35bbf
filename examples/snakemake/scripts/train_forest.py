"""Train a random forest; the wildcard `size` is its number of trees."""

# ruff: noqa: F821 - Snakemake puts `snakemake` in front of its scripts

from sklearn.ensemble import RandomForestClassifier
from trained import train

trees = int(snakemake.wildcards.size)
train(snakemake, RandomForestClassifier(trees, random_state=1).fit)
