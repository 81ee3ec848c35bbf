"""What tests and demonstrations of GRN need on a machine without a GPU.

`python -m grn.testing.job` stands in for a GPU program, `python -m grn.testing.devices` changes
simulated devices by hand, `grn.testing.cuda` is the simulated driver that such a program meets.
"""
