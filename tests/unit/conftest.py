import sys
from pathlib import Path

# Test modules share helpers such as segments.py; importlib mode puts no test folder on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))
