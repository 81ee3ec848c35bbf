"""What GRN costs, measured: `python -m tests.bench`.

Every figure stands beside a named baseline that ran in the same minutes on the same machine, turn by
turn, because absolute times of a shared machine mean little.
"""
