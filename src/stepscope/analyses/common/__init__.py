"""What several analyses need: device work, steps of a device, time buckets, nesting of spans."""
