/**
 * Numbers and strings as a reader sees them, in the same words as nbcompile/render/units.py; tests/words.json at the
 * top of the repository holds what both must say.
 *
 * A report may come from anywhere. What leaves this module is short, printable and on one line.
 */

/** Shown where a figure is absent. */
export const ABSENT = '–';

/** The longest piece of a report's text that is shown. */
export const LONGEST = 300;

/** Free-form data of a report: environment, model, settings. Objects are maps, so that no key is special. */
export type Plain = null | boolean | number | string | Plain[] | Map<string, Plain>;

type Unit = readonly [number, string];

// Outside of these no figure is a measurement.
const SMALLEST = 1e-30;
const LARGEST = 1e100;

// Control characters, halves of characters, and marks that reorder or hide text on screen.
const UNPRINTABLE =
  // eslint-disable-next-line no-control-regex
  /[\x00-\x1f\x7f-\x9f\ud800-\udfff\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufffe\uffff]+/gu;

/** From which number of seconds on a time is told in a longer unit, and that: 90 s and 267 s are easier to compare. */
const LONG_TIMES: readonly (readonly [number, number, string])[] = [
  [48 * 3600, 24 * 3600, 'd'],
  [3600, 3600, 'h'],
  [600, 60, 'min']
];
const TIME_UNITS: readonly Unit[] = [
  [1, 's'],
  [1e-3, 'ms'],
  [1e-6, 'µs']
];
const SIZE_UNITS: readonly Unit[] = [
  [1e12, 'TB'],
  [1e9, 'GB'],
  [1e6, 'MB'],
  [1e3, 'kB'],
  [1, 'B']
];
const COUNT_UNITS: readonly Unit[] = [
  [1e9, ' B'],
  [1e6, ' M'],
  [1e3, ' k'],
  [1, '']
];

/** The value as a number if it can be an amount of time, memory or things; else it counts as absent. */
export function amount(value: unknown): number | null {
  if (typeof value !== 'number' || !(value >= 0 && value <= LARGEST)) {
    return null;
  }
  return value >= SMALLEST ? value : 0;
}

/** A number with so many significant digits. */
export function digits(value: number, significant = 3): string {
  if (value === 0) {
    return '0';
  }
  const [mantissa, exponent] = rounded(value, significant);
  if (exponent < -4 || exponent >= 7) {
    return scientific(mantissa, exponent);
  }
  // the digits are there already, so what toFixed rounds is nothing but their binary error
  return Number(`${mantissa}e${exponent}`).toFixed(Math.max(0, significant - 1 - exponent));
}

/** A time that is still running: no more digits than can be read. */
export function clock(value: unknown): string {
  const number = amount(value);
  if (number === null) {
    return ABSENT;
  }
  if (number < 59.95) {
    return `${fixed(number, 1)} s`;
  }
  const whole = halfEven(number);
  return `${count(Math.floor(whole / 60))} min ${whole % 60} s`;
}

/** The unit in which so many seconds are best told: its length in seconds and its name. */
export function timeUnit(longest: number): Unit {
  return fitting(longest, TIME_UNITS);
}

/** A time: `1.23 ms`, `267 s`, `19.4 h`. */
export function seconds(value: unknown): string {
  const number = amount(value);
  for (const [least, factor, unit] of LONG_TIMES) {
    if (number !== null && number >= least) {
      return `${digits(number / factor)} ${unit}`;
    }
  }
  return inUnits(value, TIME_UNITS, ' ', '0 s');
}

/** A power of ten of seconds for an axis: `10 ms`. */
export function decadeSeconds(decade: number): string {
  const [factor, unit] = timeUnit(10 ** decade);
  const times = 10 ** decade / factor;
  return `${decade >= 0 ? count(Math.round(times)) : general(times)} ${unit}`;
}

/** A time and how far it varied, in one unit: `12.3 ± 0.21 ms`. */
export function spreadSeconds(value: unknown, halfSpread: number | null): string {
  const number = amount(value);
  if (number === null || halfSpread === null) {
    return seconds(value);
  }
  const [factor, unit] = timeUnit(number || halfSpread);
  return `${digits(number / factor)} ± ${digits(halfSpread / factor, 2)} ${unit}`;
}

/** An amount of memory: `1.23 GB`. */
export function size(value: unknown): string {
  return inUnits(value, SIZE_UNITS, ' ', '0 B');
}

/** A large number of things: `135 M`. */
export function shortCount(value: unknown): string {
  return inUnits(value, COUNT_UNITS, '', '0');
}

/** A number of things, every digit of it as long as a person would read them. */
export function count(value: unknown): string {
  const number = amount(value);
  if (number === null) {
    return ABSENT;
  }
  return number < 1e12 ? String(Math.trunc(number)) : digits(number);
}

/** How many times as fast: `1.42x`. */
export function ratio(value: number | null): string {
  return value === null ? ABSENT : `${digits(value)}x`;
}

/** The size of a deviation: `1.19e-06`. */
export function difference(value: unknown): string {
  const number = amount(value);
  if (number === null) {
    return ABSENT;
  }
  return number === 0 ? '0' : scientific(...rounded(number, 3));
}

/** So many of a thing: `1 call`, `2 calls`. */
export function plural(number: number | null, thing: string): string {
  return `${count(number)} ${thing}${number === 1 ? '' : 's'}`;
}

/** A report's text on one line, printable and not longer than the limit. */
export function clean(text: Plain, limit = LONGEST): string {
  if (typeof text !== 'string') {
    return brief(text, limit);
  }
  const characters = Array.from(text.slice(0, 8 * limit + 2)); // two units make a character at the most
  const tooLong = characters.length > 4 * limit;
  const shown = (tooLong ? characters.slice(0, 4 * limit).join('') : characters.join(''))
    .replace(UNPRINTABLE, ' ')
    .split(/\s+/)
    .filter(word => word)
    .join(' ');
  const visible = Array.from(shown);
  if (visible.length > limit || tooLong) {
    return `${visible
      .slice(0, limit - 1)
      .join('')
      .trimEnd()}…`;
  }
  return shown;
}

/** Like `clean`, but what is left out is the middle: a module's path tells most at its ends. */
export function middle(text: string, limit: number): string {
  const characters = text.length > 2 * LONGEST ? Array.from(text) : [];
  const whole =
    characters.length > 2 * LONGEST
      ? `${characters.slice(0, LONGEST).join('')} ${characters.slice(-LONGEST).join('')}`
      : text;
  const shown = Array.from(clean(whole, 2 * LONGEST + 1));
  if (shown.length <= limit) {
    return shown.join('');
  }
  const head = Math.floor((limit - 1) / 3);
  return `${shown.slice(0, head).join('')}…${shown.slice(shown.length - (limit - 1 - head)).join('')}`;
}

/** Any JSON value in a few words: two levels of nesting, eight items of each. */
export function brief(value: Plain, limit = LONGEST, depth = 2): string {
  if (value === null) {
    return 'None';
  }
  if (typeof value === 'boolean') {
    return value ? 'True' : 'False';
  }
  if (typeof value === 'number') {
    const number = amount(Math.abs(value));
    if (number === null) {
      return ABSENT;
    }
    return Number.isInteger(value) && number < 1e15 ? String(value) : general(value);
  }
  if (typeof value === 'string') {
    return clean(value, limit);
  }
  const [opening, closing] = Array.isArray(value) ? ['[', ']'] : ['{', '}'];
  const length = Array.isArray(value) ? value.length : value.size;
  if (depth === 0 && length > 0) {
    return `${opening}…${closing}`;
  }
  const items = Array.isArray(value)
    ? value.slice(0, 8).map(item => brief(item, 80, depth - 1))
    : [...value].slice(0, 8).map(([key, item]) => `${clean(key, 40)}: ${brief(item, 80, depth - 1)}`);
  if (length > 8) {
    items.push('…');
  }
  return clean(`${opening}${items.join(', ')}${closing}`, limit);
}

function inUnits(value: unknown, units: readonly Unit[], gap: string, zero: string): string {
  const number = amount(value);
  if (number === null) {
    return ABSENT;
  }
  if (number === 0) {
    return zero;
  }
  const [factor, name] = fitting(number, units);
  return `${digits(number / factor)}${gap}${name}`;
}

function fitting(number: number, units: readonly Unit[]): Unit {
  const [mantissa, exponent] = number > 0 ? rounded(number, 3) : ['0', 0];
  const shown = Number(`${mantissa}e${exponent}`); // 999.6 ms is 1.00 s once three digits are left
  return units.find(([factor]) => shown >= factor) ?? (units[units.length - 1] as Unit);
}

/**
 * A positive number's mantissa of so many digits, and its exponent. Of two that are equally near it is the even one, as
 * in Python; JavaScript's own functions take the larger.
 */
function rounded(value: number, significant: number): [string, number] {
  const [all, power] = value.toExponential(100).split('e') as [string, string]; // every digit that a number can have
  const figures = all.replace('.', '');
  const rest = figures.slice(significant);
  let kept = BigInt(figures.slice(0, significant));
  const half = `5${'0'.repeat(rest.length - 1)}`;
  if (rest > half || (rest === half && kept % 2n === 1n)) {
    kept += 1n;
  }
  let exponent = Number(power);
  let text = String(kept);
  if (text.length > significant) {
    text = text.slice(0, significant);
    exponent += 1;
  }
  return [text.length > 1 ? `${text[0]}.${text.slice(1)}` : text, exponent];
}

function scientific(mantissa: string, exponent: number): string {
  const power = String(Math.abs(exponent)).padStart(2, '0');
  return `${mantissa}e${exponent < 0 ? '-' : '+'}${power}`;
}

/** A positive number with so many digits after the point. */
function fixed(value: number, places: number): string {
  const scaled = halfEven(value * 10 ** places);
  const exact = value.toFixed(Math.min(100, places + 40));
  const tie = /^5?0*$/.test(exact.slice(exact.indexOf('.') + 1 + places));
  return tie ? (scaled / 10 ** places).toFixed(places) : value.toFixed(places);
}

function halfEven(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}

/** Six significant digits, without zeros at the end: what Python's `g` makes of a number. */
function general(value: number): string {
  if (value === 0) {
    return '0';
  }
  const [mantissa, exponent] = rounded(Math.abs(value), 6);
  const sign = value < 0 ? '-' : '';
  const bare = (text: string): string => (text.includes('.') ? text.replace(/\.?0+$/, '') : text);
  if (exponent < -4 || exponent >= 6) {
    return `${sign}${scientific(bare(mantissa), exponent)}`;
  }
  return `${sign}${bare(Number(`${mantissa}e${exponent}`).toFixed(Math.max(0, 5 - exponent)))}`;
}
