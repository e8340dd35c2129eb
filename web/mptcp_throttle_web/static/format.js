// Texts for numbers.

export function rate(bitsPerSecond) {
  if (bitsPerSecond === null || bitsPerSecond === undefined) return "–";
  if (bitsPerSecond >= 1e9) return `${(bitsPerSecond / 1e9).toFixed(2)} Gb/s`;
  if (bitsPerSecond >= 1e5) return `${(bitsPerSecond / 1e6).toFixed(2)} Mb/s`;
  return `${(bitsPerSecond / 1e3).toFixed(1)} kb/s`;
}

export function milliseconds(value) {
  return value === null || value === undefined ? "–" : `${value.toFixed(value < 10 ? 1 : 0)} ms`;
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

export function timeOfDay(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

export function duration(seconds) {
  if (seconds >= 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return seconds >= 60 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds)} s`;
}
