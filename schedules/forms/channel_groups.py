"""Channel tiling: inverted bottlenecks that compute the wide intermediate a single channel group at a time.

The kernels are generic (`schedules.kernels.channel_groups`). Whole rows use the form common to all operators
(`schedules.forms.rows`); this form adds stripes, by a kernel with room for the widest stripe.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_cascade.cascading.channels import channel_tiling
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.stripes import GenericStripeKernel
from tvm_cascade.schedules.kernels.channel_groups import grouped_stripe_kernel, groups_of

_NO_GROUPS = "it makes no channels in groups"


class ChannelGroups(KernelForm):
    """The form of inverted bottlenecks with channel tiling, in stripes."""

    way = Way.STRIPES

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        groups, down, across = (
            groups_of(site.computed.func),
            site.computed.access.windows[:1],
            site.computed.access.columns[:1],
        )
        if not groups:
            return _NO_GROUPS
        if not down or not across or down[0] is None or across[0] is None:
            return "its windows are not known"
        wide = site.computed.constants[0].shape[-1]
        tiling = channel_tiling(site.tensors[0], wide, site.tensors[-1], (down[0], across[0]), groups)
        return replace(known, channel_tiling=tiling)

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        if not groups_of(site.computed.func):
            return _NO_GROUPS
        width = max(x1 - x0 for x0, x1 in use.columns)
        return GenericStripeKernel(
            (grouped_stripe_kernel(site.computed.func, site.computed.constants, site.computed.access, width),)
        )


FORM = ChannelGroups()
