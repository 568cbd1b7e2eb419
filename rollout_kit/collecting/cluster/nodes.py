"""The nodes of a Ray cluster, where the configuration places servers there."""

from ...config.instance_keys import RAY
from ...config.keys import CollectConfig, ReverifyConfig, RunConfig
from ...config.load import Config
from ...launch.placement import Nodes


def nodes_for(
    config: Config[RunConfig] | Config[CollectConfig] | Config[ReverifyConfig],
) -> Nodes | None:
    """The nodes of a Ray cluster, if the configuration places servers there."""
    if all(each.placement != RAY for each in config.instances.values()):
        return None
    from .ray_servers import RayServers  # only where it is used

    return RayServers(config.command.ray_address)
