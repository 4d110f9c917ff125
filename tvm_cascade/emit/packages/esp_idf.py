"""An ESP-IDF component with an example, by "Build System" and "idf_component.yml" of Espressif's documentation."""

from __future__ import annotations

from pathlib import Path

from tvm_cascade.emit.golden import has_classes
from tvm_cascade.emit.network import Network
from tvm_cascade.emit.package import Package, PackageKind, printed_report, section_text, self_test_line, write_sources

# .ext_ram.bss exists where the project's configuration lets bss lie in external RAM
_SECTIONS = {"psram": (("defined(CONFIG_SPIRAM_ALLOW_BSS_SEG_EXTERNAL_MEMORY)", ".ext_ram.bss"),)}


def _report(package: Package, network: Network) -> str:
    """Write the example's lines for a single network: the self-test, then a timed call."""
    name, classed = network.name, package.extended(network) and has_classes(network)
    test = f"{self_test_line(name, 'printf')}\n" if name in package.golden and package.hearing is None else ""
    clock = "esp_timer_get_time()"
    return test + printed_report(package, name, classed, "printf", clock, f"(uint32_t){clock} - {{}}")


class _EspIdf(PackageKind):
    templates = "esp_idf"
    title = "an ESP-IDF component"
    sections = _SECTIONS

    def write(self, package: Package, folder: Path) -> dict[str, str]:
        write_sources(package, folder / "src", folder / "include", section_text(package, self.sections))
        return {
            "sources": "\n".join(f"         src/{source}" for source, _ in package.sources()),
            "chip": "esp32s3" if package.target.family.name == "xtensa" else "esp32c3",
            "report": "\n".join(_report(package, network) for network in package.networks),
        }


KIND = _EspIdf()
