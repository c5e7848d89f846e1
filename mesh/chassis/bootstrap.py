"""The xDS bootstrap of a proxyless client: where ADS is, who we are, where our certificate is.

gRPC reads it once, at the first `xds:///` channel of the process: one process, one identity.
"""

import json

from mesh.chassis.identity import Identity
from mesh.chassis.settings import NodeSettings

REFRESH_S_MAX = 60.0


def render(settings: NodeSettings, identity: Identity) -> str:
    """JSON for GRPC_XDS_BOOTSTRAP_CONFIG. gRFC A27, A65 (mTLS to the control plane), A29."""
    begin, end = identity.validity()
    # Ten looks per lifetime; renewal comes at half of it.
    refresh_s = max(1.0, min(REFRESH_S_MAX, (end - begin).total_seconds() / 10))
    files = {
        "certificate_file": str(identity.certificate),
        "private_key_file": str(identity.key),
        "ca_certificate_file": str(identity.trust_bundle),
        "refresh_interval": f"{refresh_s:.0f}s",
    }
    return json.dumps(
        {
            "xds_servers": [
                {
                    "server_uri": settings.control_address,
                    "channel_creds": [{"type": "tls", "config": files}],
                    # A deleted resource must not break running clients: the control plane may
                    # come back before its endpoints do.
                    "server_features": ["xds_v3", "ignore_resource_deletion"],
                }
            ],
            "node": {"id": settings.instance, "cluster": settings.service},
            "certificate_providers": {"default": {"plugin_name": "file_watcher", "config": files}},
        }
    )
