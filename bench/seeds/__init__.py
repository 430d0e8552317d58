# SPDX-License-Identifier: GPL-2.0-only
"""The published measurements that motivated mgloop, repeated with mgloop as one of the systems.

1. one JSON greeting, by wrk: Mongoose's C loop against asyncio servers and Flask;
2. three endpoints on several worker processes that share a port;
3. requests per second against the number of processes, multiplexed and one connection at a time;
4. a handler whose work grows with the path, on asyncio loops and in Go.

Workloads and ratios are comparable with the publications; absolute figures are not.
"""
