"""N processes → one system: topology, control plane, chassis, edge, supervisor."""
