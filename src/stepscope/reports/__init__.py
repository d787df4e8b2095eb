"""The reports: `overview` of one job, `comparison` of two runs, `roles` of many processes."""
