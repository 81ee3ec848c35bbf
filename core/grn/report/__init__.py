"""What ran, as one page to look at and as a trace for Perfetto: made from the history alone."""
