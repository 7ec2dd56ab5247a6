"""What compute-sanitizer writes, made up after its manual (2026.4), which shows logs and a part of a record.

To be replaced by recorded files: `tests/gpu/test_sanitizer_gpu.py` says how to keep them.
"""

HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
KERNEL = "_ZN6cudapy11test_broken8add_flatB2v1B20cw51cXTLSUwv1sCUt9UwE5ArrayIfLi1E1C7mutable7alignedE"

OUT_OF_BOUNDS = f"""
    <record>
      <kind>Precise</kind>
      <level>Error</level>
      <who>
        <threadIdx><x>63</x><y>0</y><z>0</z></threadIdx>
        <blockIdx><x>1</x><y>0</y><z>0</z></blockIdx>
      </who>
      <what>
        <text>Invalid __global__ write of size 4 bytes</text>
        <space>__global__</space><size>4</size><direction>write</direction>
        <address>0x7f3a4c000404</address>
      </what>
      <where>
        <func>{KERNEL}</func><path>/project/on_numba.py</path><line>31</line><pc>0x1d0</pc>
      </where>
      <hostStack>
        <saveLocation>kernel launch time</saveLocation>
        <frame><func>cuLaunchKernel</func><module>/usr/lib/libcuda.so.1</module></frame>
        <frame><func>launch</func><path>/venv/lib/driver.py</path><line>2000</line></frame>
        <frame><func>test_add</func><path>/project/test_add.py</path><line>12</line></frame>
        <frame><func>main</func><module>/usr/bin/python3</module></frame>
      </hostStack>
    </record>
"""

HAZARD = """
    <record>
      <kind>Hazard</kind>
      <level>Error</level>
      <what><text>Potential RAW hazard detected at __shared__ 0x40</text></what>
      <who><blockIdx><x>2</x><y>1</y><z>0</z></blockIdx></who>
      <thread0>
        <direction>Write</direction><threadIdx><x>0</x><y>1</y><z>0</z></threadIdx>
        <frame><func>tiled()</func><path>/tmp/kernel.cu</path><line>7</line></frame>
      </thread0>
      <thread1>
        <direction>Read</direction><threadIdx><x>16</x><y>0</y><z>0</z></threadIdx>
        <frame><func>tiled()</func><path>/tmp/kernel.cu</path><line>9</line></frame>
      </thread1>
    </record>
"""

LAUNCH = """
    <record>
      <kind>LaunchInfo</kind><level>Info</level><what><text>Launch #1</text></what>
    </record>
"""

INTERNAL = """
    <record>
      <kind>Internal</kind><level>Fatal</level>
      <what><text>Internal Sanitizer Error: The Sanitizer encountered an error while launching add_flat and
      didn't track the launch. Errors might go undetected.</text></what>
    </record>
"""

UNSUPPORTED = (
    '========= Error: Device not supported. Please refer to the "Supported Devices" section of the '
    "sanitizer documentation\n"
)


def xml(*records):
    """A whole report."""
    return f"{HEAD}<ComputeSanitizerOutput>{''.join(records)}</ComputeSanitizerOutput>\n"


def log(*, errors=0, tool="memcheck", said=""):
    """A log with its summary."""
    if tool == "racecheck":
        summary = f"RACECHECK SUMMARY: {errors} hazards displayed ({errors} errors, 0 warnings)"
    else:
        summary = f"ERROR SUMMARY: {errors} error{'s' if errors != 1 else ''}"
    return f"========= COMPUTE-SANITIZER\n{said}========= {summary}\n"
