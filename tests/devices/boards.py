"""Boards as file trees: what Jetson Linux shows below ``/sys``, ``/etc``, ``/proc`` and ``/var``, one function each."""

from collections.abc import Callable, Mapping
from pathlib import Path

_CONF = """# PM_CONFIG of a board, shortened
< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=2 NAME=15W >
CPU_ONLINE CORE_0 1
< PM_CONFIG DEFAULT=2 >
"""


def write(root: Path, files: Mapping[str, object]) -> Path:
    """Write files by path below ``root``."""
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{content}\n")
    return root


def _l4t(root: Path, model: str, major: int, revision: str) -> None:
    text = f"# R{major} (release), REVISION: {revision}, GCID: 38968081, BOARD: generic, EABI: aarch64"
    write(root, {"etc/nv_tegra_release": text, "etc/nvpmodel.conf": _CONF, "var/lib/nvpmodel/status": "pmode:0002"})
    write(root, {"proc/device-tree/model": f"{model}\0"})


def _ina3221(root: Path, address: str, number: int, rails: Mapping[int, tuple[str, int, int]]) -> None:
    """A sensor with (label, mV, mA) by channel, below its driver and below ``class``, as the kernel links it."""
    folder = root / f"sys/bus/i2c/drivers/ina3221/{address}/hwmon/hwmon{number}"
    write(folder, {"name": "ina3221", "in7_label": "sum of shunt voltages", "curr4_input": 0})
    for channel, (label, millivolts, milliamperes) in rails.items():
        write(
            folder,
            {
                f"in{channel}_label": label,
                f"in{channel}_enable": 1,
                f"in{channel}_input": millivolts,
                f"curr{channel}_input": milliamperes,
            },
        )
    link = root / f"sys/class/hwmon/hwmon{number}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)


def _heat(root: Path, alert: int = 0, events: int = 0) -> None:
    files = {
        "thermal_zone0/type": "cpu-thermal",
        "thermal_zone0/temp": 48250,
        "thermal_zone1/type": "tj-thermal",
        "thermal_zone1/temp": 51000,
        # A zone that is off: the kernel's answer to a switched-off domain.
        "thermal_zone2/type": "cv0-thermal",
        "thermal_zone2/temp": -256000,
        "cooling_device0/type": "pwm-fan",
        "cooling_device0/cur_state": 3,
        "cooling_device1/type": "cpu-throttle-alert",
        "cooling_device1/cur_state": alert,
    }
    write(root / "sys/class/thermal", files)
    write(root / "sys/class/hwmon/hwmon9", {"name": "soctherm_oc", "oc1_event_cnt": 0, "oc3_event_cnt": events})


def agx_orin(root: Path) -> Path:
    """AGX Orin, JetPack 6: two sensors, four rails, no input rail."""
    _l4t(root, "NVIDIA Jetson AGX Orin Developer Kit", 36, "4.0")
    rails = {1: ("VDD_GPU_SOC", 20000, 400), 2: ("VDD_CPU_CV", 20000, 300), 3: ("VIN_SYS_5V0", 5000, 900)}
    _ina3221(root, "1-0040", 3, rails)
    _ina3221(root, "1-0041", 4, {1: ("NC", 0, 0), 2: ("VDDQ_VDD2_1V8AO", 5000, 100)})
    _heat(root)
    return root


def orin_nx(root: Path) -> Path:
    """Orin NX, JetPack 6: one sensor, whose first rail is the module's input."""
    _l4t(root, "NVIDIA Jetson Orin NX Engineering Reference Developer Kit", 36, "4.3")
    rails = {1: ("VDD_IN", 5000, 1600), 2: ("VDD_CPU_GPU_CV", 5000, 700), 3: ("VDD_SOC", 5000, 400)}
    _ina3221(root, "1-0040", 1, rails)
    _heat(root)
    return root


def jetpack_7(root: Path) -> Path:
    """AGX Thor, JetPack 7: three rails, and the input at a sensor of another kind."""
    _l4t(root, "NVIDIA Jetson AGX Thor Developer Kit", 38, "2.0")
    _ina3221(root, "2-0040", 2, {1: ("VDD_GPU", 12000, 0), 2: ("VDD_CPU_SOC_MSS", 12000, 500)})
    write(root / "sys/class/hwmon/hwmon5", {"name": "ina238", "label": "VIN", "power1_input": 23_000_000})
    _heat(root)
    return root


def jetpack_4(root: Path) -> Path:
    """Jetson Nano, JetPack 4: the older layout, and a release that is too old."""
    _l4t(root, "NVIDIA Jetson Nano Developer Kit", 32, "7.1")
    folder = root / "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    write(folder, {"name": "ina3221x", "rail_name_0": "POM_5V_IN", "in_power0_input": 3400})
    write(folder, {"rail_name_1": "POM_5V_GPU", "in_power1_input": 40})
    return root


def nothing(root: Path) -> Path:
    """A machine without any of it."""
    root.mkdir(parents=True, exist_ok=True)
    return root


def negative(root: Path) -> Path:
    """An idle rail below zero, an offset of the sensor: no power, and no sum."""
    agx_orin(root)
    write(root / "sys/class/hwmon/hwmon3", {"curr1_input": -32})
    return root


def unreadable(root: Path) -> Path:
    """A sensor whose channel the kernel refuses to read."""
    orin_nx(root)
    (root / "sys/class/hwmon/hwmon1/curr1_input").chmod(0)
    return root


def slowed(root: Path) -> Path:
    """A board that is slowed down now and has counted over-current events."""
    orin_nx(root)
    _heat(root, alert=1, events=7)
    return root


BOARDS: Mapping[str, Callable[[Path], Path]] = {
    "agx_orin": agx_orin,
    "orin_nx": orin_nx,
    "jetpack_7": jetpack_7,
    "jetpack_4": jetpack_4,
    "none": nothing,
    "negative": negative,
    "unreadable": unreadable,
    "slowed": slowed,
}
