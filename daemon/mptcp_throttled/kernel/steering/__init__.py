"""The programs that hold capped subflows of downloads back, and let them send as much as their cap allows."""
