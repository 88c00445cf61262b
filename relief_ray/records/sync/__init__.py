"""Copies of records elsewhere: MLflow and a mirror folder."""
