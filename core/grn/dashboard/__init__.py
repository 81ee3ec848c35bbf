"""The page of a report, alive: served over HTTP by the broker to browsers on its machine."""
