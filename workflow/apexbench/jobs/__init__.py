"""Measuring jobs: a request becomes records, whatever dies on the way."""
