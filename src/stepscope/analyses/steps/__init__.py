"""Steps and what fills them: device work, idle time, launches, transfers, overlap."""
