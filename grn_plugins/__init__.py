"""Thin adapters that bring GRN into workflow engines."""
