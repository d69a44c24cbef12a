//! The local time that `strftime_now` reads.

use std::fmt::Write as _;

use web_time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A civil date and time, in whatever zone the caller lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Seconds from 1970-01-01 00:00:00 of the same zone.
    seconds: i64,
}

impl Clock {
    /// The time so many seconds after the epoch, read as local time.
    pub fn from_unix(seconds: i64) -> Self {
        Clock { seconds }
    }

    /// The system's time, in UTC.
    pub fn now_utc() -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Clock {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        }
    }

    /// Reads `YYYY-MM-DD` with an optional `THH:MM:SS`.
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "0:0:0"));
        let [year, month, day] = fields(date, '-')?;
        let [hour, minute, second] = fields(time.trim_end_matches('Z'), ':')?;
        let valid = (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute)
            && (0..60).contains(&second);
        let days = days_from_civil(year, month, day);
        valid.then_some(Clock {
            seconds: days * 86_400 + hour * 3_600 + minute * 60 + second,
        })
    }

    /// Formats as C's `strftime` does in the C locale; unknown directives stay as they are.
    pub fn format(&self, format: &str) -> String {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('-') => {
                    let padded = chars.next().map_or(String::new(), |c| self.directive(c));
                    let bare = padded.trim_start_matches('0');
                    out.push_str(if bare.is_empty() { "0" } else { bare });
                }
                Some(directive) => out.push_str(&self.directive(directive)),
                None => out.push('%'),
            }
        }
        out
    }

    fn directive(&self, directive: char) -> String {
        let days = self.seconds.div_euclid(86_400);
        let second = self.seconds.rem_euclid(86_400);
        let (year, month, day) = civil_from_days(days);
        let (hour, weekday) = (second / 3_600, (days + 4).rem_euclid(7));
        let of_year = days - days_from_civil(year, 1, 1);
        let month_name = MONTHS[month as usize - 1];
        let day_name = DAYS[weekday as usize];
        match directive {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name[..3].to_owned(),
            'w' => weekday.to_string(),
            'u' => (if weekday == 0 { 7 } else { weekday }).to_string(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{:02}", second / 60 % 60),
            'S' => format!("{:02}", second % 60),
            'f' => "000000".to_owned(),
            'j' => format!("{:03}", of_year + 1),
            'U' => format!("{:02}", (of_year + 7 - weekday) / 7),
            'W' => format!("{:02}", (of_year + 7 - (weekday + 6) % 7) / 7),
            's' => self.seconds.to_string(),
            other => self.composite(other),
        }
    }

    fn composite(&self, directive: char) -> String {
        match directive {
            'F' => self.format("%Y-%m-%d"),
            'T' | 'X' => self.format("%H:%M:%S"),
            'R' => self.format("%H:%M"),
            'D' | 'x' => self.format("%m/%d/%y"),
            'c' => self.format("%a %b %e %H:%M:%S %Y"),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            // Python's local time knows no zone.
            'z' | 'Z' => String::new(),
            other => {
                let mut kept = String::from('%');
                let _ = write!(kept, "{other}");
                kept
            }
        }
    }
}

fn fields(text: &str, separator: char) -> Option<[i64; 3]> {
    let mut parts = text
        .split(separator)
        .map(|part| part.parse::<u32>().map(i64::from));
    let fields = [
        parts.next()?.ok()?,
        parts.next()?.ok()?,
        parts.next()?.ok()?,
    ];
    parts.next().is_none().then_some(fields)
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar; years are counted from March.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, of_year - (153 * shifted + 2) / 5 + 1)
}
