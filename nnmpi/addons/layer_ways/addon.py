"""Further ways to divide layers among the ranks along tp: mixtures of experts, branches that single
ranks compute alone, and images that are cut by rows."""

from nnmpi.addons import AddOn

_OPS = "nnmpi.addons.layer_ways.branch_ops", "nnmpi.addons.layer_ways.expert_ops"

ADD_ON = AddOn(
    modules=("nnmpi.addons.layer_ways",),
    of_step=(*_OPS, "nnmpi.addons.layer_ways.branches", "nnmpi.addons.layer_ways.experts"),
    classes_of_step=_OPS,
    rows={
        "names": {
            "nn.Branches": "nnmpi.addons.layer_ways.branches:Branches",
            "nn.MixtureOfExperts": "nnmpi.addons.layer_ways.experts:MixtureOfExperts",
        },
        "modules": {
            "nn.layers.branches": "nnmpi.addons.layer_ways.branches",
            "nn.layers.experts": "nnmpi.addons.layer_ways.experts",
        },
        "op_types": {
            "nnmpi.addons.layer_ways.expert_ops:route": (
                "nnmpi.addons.layer_ways.op_types:in_float32"
            ),
            **{
                f"nnmpi.addons.layer_ways.{op}": "nnmpi.addons.layer_ways.op_types:in_16_bits"
                for op in (
                    "expert_ops:experts",
                    "experts_on_ranks:experts_by_exchange",
                    "experts_on_ranks:experts_on_ranks",
                    "image_rows.layers:conv2d",
                )
            },
        },
        "layer_rules": {
            "nnmpi.addons.layer_ways.experts:Experts": (
                "nnmpi.addons.layer_ways.experts_on_ranks:EXPERTS_RULE"
            ),
            "nnmpi.addons.layer_ways.experts:Router": (
                "nnmpi.addons.layer_ways.experts_on_ranks:ROUTER_RULE"
            ),
        },
        "module_rules": {
            "nnmpi.addons.layer_ways.branches:Branches": (
                "nnmpi.addons.layer_ways.branches_on_ranks:divide_branches"
            )
        },
        "layout_axes": {"rows": "nnmpi.addons.layer_ways.image_rows.cut:IMAGE_ROWS"},
    },
)
