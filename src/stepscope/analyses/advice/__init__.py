"""Recommendations: rules over the results of other analyses."""
