"""The control plane: certificate authority, registry, xDS. See README.md."""
