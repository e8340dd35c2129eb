// Texts for numbers and times, in the browser's language. A narrow no-break space joins number and unit.

const NARROW = "\u202f";
const numbers = new Map();

function plain(value, digits) {
  if (!numbers.has(digits)) numbers.set(digits, new Intl.NumberFormat([], { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  return numbers.get(digits).format(value);
}

export function rate(bitsPerSecond) {
  if (bitsPerSecond === null || bitsPerSecond === undefined) return "–";
  if (bitsPerSecond >= 1e9) return `${plain(bitsPerSecond / 1e9, 2)}${NARROW}Gb/s`;
  if (bitsPerSecond >= 999_500) return `${plain(bitsPerSecond / 1e6, bitsPerSecond >= 1e8 ? 0 : 1)}${NARROW}Mb/s`;
  return `${plain(bitsPerSecond / 1e3, 0 < bitsPerSecond && bitsPerSecond < 1e4 ? 1 : 0)}${NARROW}kb/s`;
}

// A text of the daemon, with each rate in it as on this page: there it is as in configuration files, such as 512kbit.
export function withRates(text) {
  return text.replace(/\b(\d+(?:\.\d+)?)([kmg]?)bit\b/g, (_, value, unit) => rate(value * 1000 ** " kmg".indexOf(unit || " ")));
}

export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), units.length - 1);
  const value = bytes / 1000 ** power;
  return `${plain(value, power === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2)}${NARROW}${units[power]}`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return `${plain(value, value < 10 ? 1 : 0)}${NARROW}ms`;
}

// Of waiting: "nothing" is a figure.
export function wait(ms) {
  if (ms < 1) return "nothing";
  return ms < 1000 ? `${plain(ms, 0)}${NARROW}ms` : `${plain(ms / 1000, 1)}${NARROW}s`;
}

export function percent(part, whole = 1) {
  return whole ? `${plain((100 * part) / whole, 0)}${NARROW}%` : "–";
}

export function integer(value) {
  return plain(value, 0);
}

export function count(number, noun) {
  return `${plain(number, 0)} ${noun}${number === 1 ? "" : "s"}`;
}

// In words up to nine, for sentences.
export function words(number, noun) {
  const texts = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
  return `${texts[number] ?? plain(number, 0)} ${noun}${number === 1 ? "" : "s"}`;
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export function duration(seconds) {
  if (seconds >= 172_800) return `${plain(seconds / 86_400, 0)} days`;
  if (seconds >= 5400) return `${plain(seconds / 3600, 0)}${NARROW}h`;
  return seconds >= 60 ? `${plain(seconds / 60, 0)}${NARROW}min` : `${plain(seconds, 0)}${NARROW}s`;
}

// Times are those of the proxy's zone, once the daemon has said which that is.
let zone;

export function setZone(name) {
  zone = name ?? undefined;
}

const formats = new Map();

function dated(seconds, options) {
  const key = JSON.stringify([options, zone]);
  // With hour12: false, some locales call midnight 24:00.
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat([], { timeZone: zone, hourCycle: options.hour ? "h23" : undefined, ...options }));
  return formats.get(key).format(seconds * 1000);
}

const MINUTES = { hour: "2-digit", minute: "2-digit" };
const DAY = { year: "numeric", month: "numeric", day: "numeric" };

function isSameDay(first, second) {
  return dated(first, DAY) === dated(second, DAY);
}

export function clock(seconds) {
  return dated(seconds, MINUTES);
}

// A moment of today by its time alone.
export function moment(seconds) {
  const time = dated(seconds, { ...MINUTES, second: "2-digit" });
  if (isSameDay(seconds, Date.now() / 1000)) return time;
  return `${dated(seconds, { day: "numeric", month: "short", year: "numeric" })}, ${time}`;
}

// When something ends: "18:00" of today, else with its day.
export function until(seconds) {
  if (isSameDay(seconds, Date.now() / 1000)) return clock(seconds);
  return `${dated(seconds, { weekday: "short", day: "numeric", month: "short" })}, ${clock(seconds)}`;
}

export function day(seconds) {
  return dated(seconds, { weekday: "long", day: "numeric", month: "long" });
}

export function shortDay(seconds) {
  return dated(seconds, { weekday: "short", day: "numeric" });
}

// Of a time axis whose ticks are `step` seconds apart.
export function tick(seconds, step) {
  if (step >= 86_400) return dated(seconds, { day: "numeric", month: "short" });
  return dated(seconds, step < 60 ? { ...MINUTES, second: "2-digit" } : MINUTES);
}

// Seconds by which clocks of the zone are ahead of UTC then.
export function offset(seconds) {
  const options = { timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" };
  if (!formats.has(zone)) formats.set(zone, new Intl.DateTimeFormat("en-US", options));
  const part = Object.fromEntries(formats.get(zone).formatToParts(seconds * 1000).map(({ type, value }) => [type, Number(value)]));
  return Date.UTC(part.year, part.month - 1, part.day, part.hour, part.minute, part.second) / 1000 - Math.floor(seconds);
}
