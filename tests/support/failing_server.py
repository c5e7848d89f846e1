"""The server of `mesh_server.py`, in which one work of the chassis (FAILS) always ends."""

import os
from typing import Any

from mesh.chassis import background, node, run
from tests.support.mesh_server import start

_chassis_work = node.chassis_work


def _broken(*args: Any) -> Any:
    failed = False

    async def fail() -> None:
        raise OSError(28, "No space left on device")

    works = dict(_chassis_work(*args))
    well = works[os.environ["FAILS"]]

    async def well_then_broken() -> None:
        """Goes on until the control plane lists the instance, and is broken from then on."""
        nonlocal failed
        if not failed:
            failed = True
            await node.asyncio.wait_for(well(), float(os.environ["WELL_S"]))
        await fail()

    return {**works, os.environ["FAILS"]: well_then_broken}


if __name__ == "__main__":
    background.AGAIN_S_MIN = 0.01
    node.chassis_work = _broken
    run(start)
