#!/bin/sh
# Recordings as 16-bit mono at 16 kHz: what espeak-ng 1.51 reads, and others that are named. Usage: sounds.sh FOLDER [SOUND…]
# What speech.json knows beside espeak-ng's: jfk.wav (in the source package of Python's pywhispercpp) and test-2.mp3 (in llama-cpp-python's).
set -e
folder=$1
shift
mkdir -p "$folder"
sixteen() { # input, name
    ffmpeg -v error -y -i "$1" -ac 1 -ar 16000 -bitexact -c:a pcm_s16le "$folder/$2.wav"
}
for sound in "$@"; do
    name=${sound##*/}
    sixteen "$sound" "${name%.*}"
done
say() { # name, voice, words per minute, text
    espeak-ng -v "$2" -s "$3" --stdout "$4" | sixteen - "$1"
}
say english en-gb 150 'The lighthouse keeper climbed the stairs every evening at seven. He carried a lamp, a book and a small loaf of bread. On clear nights he could see the ships pass, forty or fifty of them, each with its own light. He wrote their names into a ledger, if he could read them, and the hour at which they passed. In winter there were fewer, and he had more time to read. He read about other countries, about the stars, and about the habits of bees. Once a month a boat came with oil and letters. The letters were seldom for him. He put them into a drawer, and when the spring came he took them to the village, where people thanked him and asked what the sea was like. It is large, he said, and it is never quite the same twice.'
say american en-us 175 'Please call Doctor Miller at 555 0142 before 9:30 on Monday, March 3rd. The price went up from $12.50 to $14, which is about twelve percent. We need three copies of the report, two chargers and one good idea. Version 2.5 will ship in October, unless the tests fail again.'
say german de 150 'Guten Morgen, meine Damen und Herren. Der Zug nach Hamburg fährt heute von Gleis sieben ab und hat etwa zwanzig Minuten Verspätung. Wir bitten um Ihr Verständnis. Im Speisewagen gibt es Kaffee, Kuchen und belegte Brötchen.'
say spanish es 150 'Buenos días. La biblioteca abre a las nueve de la mañana y cierra a las ocho de la tarde. Los niños pueden leer en el segundo piso, donde hay muchos libros y una ventana grande.'
say russian ru 150 'Добрый день. Сегодня в Москве холодно, идёт снег, и ветер дует с севера. Завтра будет теплее, но вечером снова пойдёт дождь.'
