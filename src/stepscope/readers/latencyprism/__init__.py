"""Tables that LatencyPrism writes."""
