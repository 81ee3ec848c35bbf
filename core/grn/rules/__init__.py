"""The rules: pure decisions, without input, output or a clock of their own."""
