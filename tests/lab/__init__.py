"""Build a small cluster on one Linux machine: ``python -m tests.lab up a:3 b:3 c:2`` (docs/cluster.md#lab).

A node is a network, mount, process and host-name namespace with a CPU quota of its own. All nodes hang on one bridge by
links whose rates are set per direction. Nodes share no disk that can be written to, and nothing reaches a real network.
"""
