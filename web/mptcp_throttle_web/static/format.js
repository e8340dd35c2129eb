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

export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), units.length - 1);
  return `${(bytes / 1000 ** power).toFixed(power ? 2 : 0)} ${units[power]}`;
}

export function seconds(milliseconds) {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

export function percent(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "–";
}

// With hour12: false, some locales call midnight 24:00.
const MINUTES = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const SECONDS = { ...MINUTES, second: "2-digit" };

// A moment of today by its time alone.
export function moment(seconds) {
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString([], SECONDS);
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" })}, ${time}`;
}

// Of a time axis whose ticks are `step` seconds apart.
export function tick(seconds, step) {
  const at = new Date(seconds * 1000);
  if (step >= 86400) return at.toLocaleDateString([], { day: "numeric", month: "short" });
  return at.toLocaleTimeString([], step < 60 ? SECONDS : MINUTES);
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

export function duration(seconds) {
  if (seconds >= 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return seconds >= 60 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds)} s`;
}
