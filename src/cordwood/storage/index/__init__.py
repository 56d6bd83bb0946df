"""The key indexes beside a log: made from segments, written, believed or not, and asked for keys."""
