# SPDX-License-Identifier: Apache-2.0
r"""Kinds of answers that verifiers pay or refuse wrongly: numbers that floats confuse, words that look like units.

A line is a gold answer, ACCEPTS, REFUSES or UNGRADED, and answers with two semicolons between them.
"""

KINDS = {
    "numbers that a float cannot tell apart": r"""
\frac{2^{80}+1}{2^{81}} ACCEPTS \frac12+2^{-81} ;; \frac{1}{2}+\frac{1}{2^{81}}
\frac{2^{80}+1}{2^{81}} REFUSES \frac12 ;; 0.5 ;; \frac{1}{2^{81}}
10^{-400} REFUSES 10^{-500} ;; 0 ;; 10^{400} ;; 2\cdot10^{-400} ;; 10^{-399}
10^{-400} ACCEPTS \frac{1}{10^{400}} ;; 0.1^{400} ;; 10^{-200}\cdot10^{-200}
0 REFUSES 10^{-400} ;; 10^{-20} ;; 1e-30
10^{400} REFUSES 10^{400}+1 ;; 10^{401} ;; \infty
2^{1000}-1 REFUSES 2^{1000} ;; 2^{1000}+1
2^{1000} ACCEPTS 4^{500} ;; 2\cdot 2^{999}
\frac{100!}{99!} ACCEPTS 100
\frac{1}{100!} REFUSES \frac{1}{101!} ;; 0
\frac{10^{30}+1}{10^{30}} REFUSES 1
\sqrt{10^{40}+1} REFUSES 10^{20}
\sqrt{10^{400}+1}-10^{200} REFUSES 0
0 REFUSES \sqrt{10^{400}+1}-10^{200}
\pi REFUSES \pi+10^{-400} ;; \pi + 10^{-30} ;; 3.14159 ;; \frac{355}{113}
\pi ACCEPTS 3.14159265 ;; 3.141593 ;; 4\arctan 1
\sqrt{2}+\sqrt{3} ACCEPTS \sqrt{5+2\sqrt{6}}
e^{-100} REFUSES 0 ;; e^{-101}
e^{-100} ACCEPTS \frac{1}{e^{100}}
10^{10^{10}} REFUSES 10^{10^{9}} ;; 7 ;; 10^{10^{11}}
10^{10^{10}} ACCEPTS 10^{10^{10}}
7 REFUSES 10^{10^{10}} ;; 10^{-10^{10}} ;; 10^{10^{10^{10}}} ;; 9^{9^{9^9}} ;; 2^{-10^{12}}
\frac{3^{100}}{3^{99}} ACCEPTS 3
\left(\frac{1}{2}\right)^{100} REFUSES \left(\frac{1}{2}\right)^{101} ;; 0
1-10^{-20} REFUSES 1
\frac{1}{3}\cdot 10^{-20} REFUSES \frac{2}{3}\cdot 10^{-20} ;; 0
\frac{\binom{100}{50}}{2^{100}} REFUSES \frac{\binom{100}{49}}{2^{100}} ;; \frac{\binom{100}{50}}{2^{101}}
\frac{\binom{100}{50}}{2^{100}} ACCEPTS \frac{\binom{100}{50}}{4^{50}} ;; \frac{100!}{(50!)^2 2^{100}}
10^{-20}x REFUSES 10^{-30}x ;; 0 ;; 10^{-20}
(10^{-20}, 1) REFUSES (10^{-30}, 1)
(10^{-20}, 1) ACCEPTS (\frac{1}{10^{20}}, 1)
\{2^{-80},2^{-81}\} REFUSES \{2^{-80},2^{-82}\}
\begin{pmatrix} 10^{-20} \\ 1 \end{pmatrix} REFUSES \begin{pmatrix} 10^{-30} \\ 1 \end{pmatrix}
[10^{-20},1] REFUSES [10^{-30},1] ;; [0,1]
x=10^{-20} REFUSES x=10^{-21} ;; 0
\frac17 ACCEPTS 0.142857 ;; 0.14285714
\frac17 REFUSES 0.142858 ;; 0.14286 ;; 0.142856
\frac{365!}{335!\cdot 365^{30}} ACCEPTS 0.293684
\frac{365!}{335!\cdot 365^{30}} REFUSES 0.2937 ;; \frac{365!}{334!\cdot 365^{30}}
0.3 ACCEPTS 0.30000000000000004 ;; 0.1+0.2
0.5 REFUSES 0.5000001 ;; 0.4999999
33.333333\% ACCEPTS \frac13
12.5\% ACCEPTS 0.125 ;; \frac18 ;; 12.5\%
\sqrt{1/n} ACCEPTS \frac{1}{\sqrt{n}} ;; \frac{\sqrt{n}}{n} ;; n^{-1/2}
\frac{1}{\sqrt{n}} ACCEPTS \sqrt{\frac1n}
\frac{1}{\sqrt{n}} REFUSES \sqrt{\frac{2}{n}} ;; \sqrt{n} ;; \frac1n
\sqrt{x^2} REFUSES x
|x| REFUSES x
|x| ACCEPTS \sqrt{x^2}
x REFUSES |x| ;; \sqrt{x^2}
\sqrt{ab} REFUSES \sqrt{a}+\sqrt{b}
\ln(x^2) REFUSES 2\ln x
\sqrt{\frac{a}{b}} ACCEPTS \sqrt{\frac{a}{b}}
3 ACCEPTS 2.9999999999999996 ;; \log_2 8 ;; \sqrt[3]{27}
1 ACCEPTS \sin^2 5 + \cos^2 5 ;; 0.\overline{9}
\cos(\pi/5) ACCEPTS \frac{1+\sqrt5}{4}
\sin^2 x+\cos^2 x ACCEPTS 1
2\sin x\cos x ACCEPTS \sin(2x)
2\sin x\cos x REFUSES \sin x
1000000007 REFUSES 1000000006.99999 ;; 1000000007.00001
123456789012345678901234567890 REFUSES 123456789012345678901234567891 ;; 123456789012345678901234567890.5
123456789012345678901234567890 ACCEPTS 123456789012345678901234567890.0
\frac{52!}{(13!)^4} ACCEPTS \binom{52}{13}\binom{39}{13}\binom{26}{13} ;; 53644737765488792839237440000
\frac{52!}{(13!)^4} REFUSES 53644737765488792839237440001
1.000000000000000001 REFUSES 1 ;; 1.000000000000000002
1 REFUSES 1.000000000000000001 ;; 0.99999999999999999999
\frac13 REFUSES 0.33333333333333333334 ;; 0.333333333333333333333332
\sqrt{2} ACCEPTS 1.4142135623730951 ;; 1.4142135623730950488
\sqrt{2} REFUSES 1.41421356237309504881
2^{-1074} REFUSES 0 ;; 2^{-1075} ;; 5\times 10^{-324}
\binom{5}{2}\frac{1}{32} ACCEPTS \frac{5}{16} ;; \frac{10}{32} ;; 0.3125
\binom{5}{2}\frac{1}{32} REFUSES \frac{321}{32}
3\binom{5}{2} ACCEPTS 30 ;; 3\cdot10
3\binom{5}{2} REFUSES 13
13 REFUSES 3\binom{5}{2}
60 ACCEPTS \binom{5}{2}\binom{4}{2} ;; \binom{4}{2}\binom{5}{2}
16 REFUSES \binom{5}{2}\binom{4}{2}
2 ACCEPTS 4\left(\frac{1}{2}\right) ;; 4(\frac{1}{2}) ;; (4)\frac{1}{2} ;; 4\cdot\frac12
\frac92 REFUSES 4\left(\frac{1}{2}\right) ;; 4(\frac12)
\frac92 ACCEPTS 4\frac{1}{2} ;; 4\frac12 ;; 4 \frac 1 2 ;; 4\tfrac12 ;; 4\,\frac{1}{2} ;; 4\ \frac12 ;; 4 1/2 ;; 4.5
\frac{15}{2} ACCEPTS 3\frac{5}{2} ;; 7\frac12
\frac{11}{2} REFUSES 3\frac{5}{2}
-3\frac{1}{2} ACCEPTS -3.5 ;; -\frac72
-3\frac{1}{2} REFUSES -2.5 ;; 3.5
6 ACCEPTS 2(3) ;; (2)(3) ;; \left(2\right)\left(3\right) ;; 1(2)(3) ;; 3(2)
5 REFUSES 2(3) ;; (2)(3) ;; \left(2\right)\left(3\right)
\frac{2(3)}{4} ACCEPTS \frac32 ;; 1.5
-2(3) ACCEPTS -6
-2(3) REFUSES -5
2\cdot 3(4) ACCEPTS 24
3\frac12 x ACCEPTS \frac{7x}{2}
2(5)^2 ACCEPTS 50
3\binom{4}{2}\left(\frac12\right)^4 ACCEPTS \frac{18}{16}
\gcd(4,6)(5) ACCEPTS 10
2x+3\frac{1}{3} ACCEPTS 2x+\frac{10}{3}
x3\frac{1}{2} REFUSES 3.5
(1\frac12, 2\frac13) ACCEPTS (1.5, \frac73)
1\frac12, 2\frac13 ACCEPTS \frac32,\frac73 ;; \frac73, 1.5
[1\frac12, 3) ACCEPTS [1.5,3)
x \ge 2\frac14 ACCEPTS x\ge\frac94 ;; [2.25,\infty)
2\frac34\text{ hours} ACCEPTS 2.75 ;; 165\text{ minutes} ;; 2 3/4 hours
3\frac{x}{2} ACCEPTS \frac{3x}{2} ;; 1.5x
x = 5\frac{1}{4} ACCEPTS 5.25 ;; x=\frac{21}{4}
4^{1\frac12} ACCEPTS 8
2\frac{10}{11} ACCEPTS \frac{32}{11}
2\cdot3\frac12 ACCEPTS 7
\frac{3\frac12}{2} ACCEPTS \frac74
\sqrt{2\frac14} ACCEPTS 1.5
""",
    "constants, numbers and units in text font": r"""
3 REFUSES 3\mathrm{i} ;; 3\text{i} ;; 3i ;; 3\mathrm{e} ;; 3\text{ i} ;; 3 \mathrm{i}
3i ACCEPTS 3\mathrm{i} ;; 3\text{i} ;; 3\,\mathrm{i}
2+3i ACCEPTS 2+3\mathrm{i} ;; 2 + 3\,\mathrm{i} ;; 3\mathrm{i}+2
5 REFUSES 2+3\mathrm{i}
2 REFUSES 2+3\mathrm{i}
\sqrt{3} REFUSES \sqrt{3}\mathrm{i} ;; \sqrt{3}\,\mathrm{e}
\sqrt{3}i ACCEPTS \sqrt{3}\mathrm{i} ;; \mathrm{i}\sqrt{3}
e^2 ACCEPTS \mathrm{e}^{2} ;; \mathrm{e}^2 ;; {\rm e}^2 ;; \text{e}^2
\mathrm{e}^{2} ACCEPTS e^2
2 REFUSES 2\mathrm{e} ;; 2\mathrm{e}^{2} ;; \mathrm{e}^2
2e ACCEPTS 2\mathrm{e} ;; 2\,\mathrm{e}
x REFUSES x\mathrm{e}^{2}
e^{i\pi/3} ACCEPTS \mathrm{e}^{\mathrm{i}\pi/3} ;; \mathrm{e}^{\frac{\mathrm{i}\pi}{3}}
4e^{-x} ACCEPTS 4\mathrm{e}^{-x} ;; 4\mathrm e^{-x}
e^{i\theta} ACCEPTS \mathrm e^{\mathrm i\theta} ;; \cos\theta+\mathrm{i}\sin\theta
5i ACCEPTS 5\operatorname{i} ;; 5\mathrm i ;; 5{\rm i} ;; \mathrm{5i}
4 REFUSES 4\mathrm i ;; 4\operatorname{e} ;; 4\mathrm{j} ;; 4\rm{i}
2\pi ACCEPTS 2\text{pi} ;; 2\mathrm{\pi}
2 REFUSES 2\text{pi} ;; 2\mathrm{\pi} ;; 2\uppi
9 REFUSES 9\text{ square} ;; 9\text{ inverse}
8 REFUSES 8\text{ doubled} ;; 8\text{ hundredths} ;; \text{twice } 8 ;; less than 8 ;; 8\text{ pairs}
12\text{ kWh} ACCEPTS 12 ;; 12\text{ kilowatt hours} ;; 12000\text{ Wh}
12\text{ kWh} REFUSES 12\text{ kW} ;; 12\text{ Wh}
9.8\text{ m/s}^2 ACCEPTS 9.8\,\mathrm{m\cdot s^{-2}} ;; 980\text{ cm/s}^2
9.8\text{ m/s}^2 REFUSES 9.8\text{ m/s}
8\text{ g/cm}^3 ACCEPTS 8\,\mathrm{g\,cm^{-3}} ;; 8000\text{ kg/m}^3
15\text{ m}^2 ACCEPTS 15\text{ m²} ;; 15\ \mathrm{m^2}
£20 ACCEPTS 20 ;; £20
£20 REFUSES \$20 ;; €20 ;; 20\text{ dollars}
2.5 REFUSES 2.5 \text{ million} ;; 2.5 million ;; 2.5\text{ thousand} ;; 2.5 billion
2.5\text{ million} ACCEPTS 2,500,000 ;; 2500000 ;; 2.5 million ;; 2.5 \times 10^6 ;; 2500\text{ thousand}
2.5\text{ million} ACCEPTS \$2.5\text{ million}
2.5\text{ million} REFUSES 2.5 ;; 2.5\text{ billion} ;; 25
3\text{ billion} REFUSES 3\text{ million} ;; 3
3\text{ thousand} ACCEPTS 3000 ;; 3,000
3\text{ hundred thousand} ACCEPTS 300000
36 ACCEPTS 3\text{ dozen} ;; 3 dozen ;; 3\text{ dozen eggs} ;; 3\text{ dozens}
3 REFUSES 3\text{ dozen} ;; 3 dozen ;; 3\text{ dozens} ;; 3\text{ score} ;; 3\text{ gross} ;; 3\text{ pairs}
3\text{ gross} ACCEPTS 3\text{ gross} ;; 3 gross
5 REFUSES 5\text{ below zero} ;; 5\text{ factorial} ;; 5\text{ squared} ;; 5\text{ percent of } x
5 REFUSES 5\text{ or more} ;; 5\text{ halves} ;; 5\text{ thirds} ;; 5\text{ less} ;; 5\text{ negative}
5 REFUSES 5\text{ cubed} ;; 5\text{ tenths} ;; 5\text{ modulo 3}
120 ACCEPTS 5\text{ factorial}
25 ACCEPTS 5\text{ squared}
-5 REFUSES 5
-5\text{ degrees} REFUSES 5\text{ degrees below zero} ;; 5\text{ degrees}
4\text{ l} ACCEPTS 4000\text{ ml} ;; 4\text{ L} ;; 4\text{ liters} ;; 4 ;; 4000\text{ mL} ;; 4000\text{ cm}^3
4\text{ l} ACCEPTS 4\text{ litres}
4\text{ l} REFUSES 4\text{ ml} ;; 400\text{ ml} ;; 4\text{ kg} ;; 4\text{ bananas} ;; 4\text{ gallons}
4000\text{ ml} REFUSES 4000\text{ bananas} ;; 4000\text{ l} ;; 4000\text{ cards}
72 ACCEPTS 72\text{ cards} ;; 72 cards ;; 72\text{ students} ;; 72\text{ ways} ;; 72\text{ cm}
72 ACCEPTS 72\text{ square units}
72\text{ cards} ACCEPTS 72 ;; 72\text{ cards} ;; 72 cards
72\text{ cards} REFUSES 72\text{ dogs} ;; 72\text{ dozen cards} ;; 72\text{ thousand}
1\text{ km} ACCEPTS 1000\text{ m} ;; 1000\text{ meters} ;; 100000\text{ cm} ;; 1 ;; 1\text{ kilometer} ;; 1000 m
1\text{ km} REFUSES 1\text{ m} ;; 100\text{ m} ;; 1\text{ mile}
2\text{ hours} ACCEPTS 120\text{ minutes} ;; 120\text{ min} ;; 7200\text{ s} ;; 2\text{ hr} ;; 2\text{ h}
2\text{ hours} REFUSES 2\text{ minutes} ;; 2\text{ days} ;; 120
90\text{ km/h} ACCEPTS 25\text{ m/s} ;; 90\text{ km per hour} ;; 90\text{ kilometers per hour}
90\text{ km/h} ACCEPTS 90\,\mathrm{km}/\mathrm{h} ;; 25\,\mathrm{m}\,\mathrm{s}^{-1}
90\text{ km/h} ACCEPTS 90\ \frac{\text{km}}{\text{h}} ;; 90 \text{ kmh}
90\text{ km/h} REFUSES 90\text{ m/s} ;; 90\text{ km} ;; 90\text{ mph}
60\text{ mph} ACCEPTS 60\text{ miles per hour} ;; 1\text{ mile per minute} ;; 60\text{ mi/h}
24\text{ cm}^2 ACCEPTS 24\text{ square centimeters} ;; 24\text{ sq. cm} ;; 0.0024\text{ m}^2 ;; 2400\text{ mm}^2
24\text{ cm}^2 ACCEPTS 24\text{ cm}^{2} ;; 24\text{ square units}
24\text{ cm}^2 REFUSES 24\text{ cm} ;; 24\text{ cm}^3 ;; 24\text{ m}^2
\$5 ACCEPTS 500\text{ cents} ;; 5\text{ dollars} ;; 5 ;; \$5.00
\$5 REFUSES 5\text{ cents} ;; 5\text{ euros} ;; 5\text{ apples}
50\text{ cents} ACCEPTS \$0.50 ;; 0.5\text{ dollars} ;; 50
50\text{ cents} REFUSES \$50 ;; 50\text{ dollars}
1\text{ foot} ACCEPTS 12\text{ inches} ;; 12\text{ in} ;; 1\text{ ft}
3\text{ feet} ACCEPTS 1\text{ yard}
5\text{ kg} ACCEPTS 5000\text{ g} ;; 5\text{ kilograms}
1\text{ week} ACCEPTS 7\text{ days} ;; 168\text{ hours}
2\text{ years} ACCEPTS 24\text{ months}
37^\circ\text{C} ACCEPTS 37 ;; 37\text{ degrees Celsius} ;; 37^\circ \text{C} ;; 37^\circ
37^\circ\text{C} REFUSES 37^\circ\text{F} ;; 37\text{ K} ;; 37\text{ degrees Fahrenheit}
6\text{ N} ACCEPTS 6\text{ newtons} ;; 6\,\mathrm{kg\,m/s^2} ;; 6\text{ kg m/s}^2
6\text{ N} REFUSES 6\text{ J} ;; 6\text{ kg}
5\text{ apples} REFUSES 5\text{ oranges} ;; 5\text{ kg}
12\text{ miles per gallon} REFUSES 12\text{ miles} ;; 12\text{ gallons per mile}
\frac{1}{2}\text{ hour} ACCEPTS 30\text{ minutes} ;; 0.5\text{ hours}
2\pi\text{ m} ACCEPTS 200\pi\text{ cm}
2\pi\text{ m} REFUSES 2\pi\text{ cm}
5\text{ ms} ACCEPTS 0.005\text{ s}
17\% ACCEPTS 17\text{ percent} ;; 0.17 ;; 17 percent
0.17 ACCEPTS 17\text{ percent}
5\text{ widgets} ACCEPTS 5\text{ widgets} ;; 5 widgets
5 REFUSES 5\text{ widgetless}
""",
    "plain text, Markdown and golds that are sentences": r"""
\frac{\pi}{6} ACCEPTS pi/6 ;; \pi/6 ;; (pi)/6 ;; 1/6*pi ;; pi / 6 ;; π/6 ;; \frac\pi6 ;; \frac\pi 6
\frac{\pi}{6} ACCEPTS \frac{\pi}6 ;; \tfrac\pi6
2048 ACCEPTS ***2048*** ;; _2048_ ;; \underline{2048} ;; \textcolor{blue}{2048} ;; {\bf 2048} ;; \color{red}{2048}
2048 ACCEPTS \texttt{2048} ;; \underline{\textbf{2048}} ;; \large 2048 ;; \emph{2048} ;; \color{blue} 2048
2048 REFUSES **20**48 ;; \textcolor{blue}{2049} ;; \cancel{2048} ;; 20 48
5\text{ kg} ACCEPTS 5\,\si{\kilogram} ;; 5\,\unit{kg} ;; 5\,\si{\kilo\gram}
5\text{ kg} REFUSES 5\,\si{\gram}
1.5 ACCEPTS 1 1/2 ;; 1\tfrac{1}{2}
\frac12x^2+3x ACCEPTS 1/2 x^2 + 3x ;; 0.5x**2 + 3x
\frac{7}{3}+\frac{\sqrt{5}}{3}i ACCEPTS 7/3 + sqrt(5)/3 i ;; (7+i*sqrt(5))/3
\frac{7}{3}+\frac{\sqrt{5}}{3}i REFUSES 7/3 - sqrt(5)/3 i
\log_{10} 7 ACCEPTS log10(7) ;; log_10(7)
\log_{10} 7 REFUSES log2(7)
\log_2 5 ACCEPTS log2(5) ;; ln(5)/ln(2)
7! ACCEPTS factorial(7)
\lceil n/2\rceil ACCEPTS ceiling(n/2) ;; ceil(n/2)
\lceil n/2\rceil REFUSES floor(n/2)
\infty ACCEPTS \text{infinity} ;; +oo
\frac{-3+\sqrt{17}}{4} ACCEPTS (sqrt17-3)/4
3\times 10^{8} ACCEPTS 3x10^8 ;; 3 x 10^8 ;; 3E+08
**Answer:** 15 ACCEPTS 15
The answers are 3 and 5. ACCEPTS 3, 5
The sequence converges to 2. UNGRADED 2
Bob needs 5 hours to paint the fence. UNGRADED 5
See the solution above. UNGRADED 3
all real numbers except 3 ACCEPTS \text{all real numbers except }3
all real numbers except 3 REFUSES 3
\frac{\pi}{6} REFUSES pi/3 ;; 6/pi ;; pi
e^{9} ACCEPTS exp(9) ;; e^9 ;; e**9 ;; e^(9) ;; \exp(9)
e^{9} REFUSES exp(8) ;; 9e ;; exp(-9)
e^{x^2+1} ACCEPTS exp(x^2+1) ;; exp(x**2 + 1) ;; e^(x^2+1)
\ln 2 ACCEPTS ln(2) ;; ln 2 ;; \ln(2) ;; \mathrm{ln}\,2 ;; \operatorname{ln} 2
\ln 2 REFUSES ln(3) ;; 2
\sin x ACCEPTS sin(x) ;; sin x ;; sinx ;; \operatorname{sin} x ;; \text{sin} x
\sin x REFUSES cos(x) ;; sin(2x)
x^2+1 ACCEPTS x**2+1 ;; x**2 + 1 ;; x^(2)+1 ;; 1+x*x
x^2+1 REFUSES x*2+1 ;; x**3+1
\frac{1+\sqrt{5}}{2} ACCEPTS (1+sqrt(5))/2 ;; (1 + sqrt 5)/2 ;; (1+√5)/2 ;; \frac{1+\sqrt5}2 ;; (1+√(5))/2
\sqrt{2} ACCEPTS sqrt(2) ;; 2^(1/2) ;; 2**0.5 ;; \sqrt 2 ;; √2 ;; 2**(1/2)
\sqrt{3+\sqrt{2}} ACCEPTS sqrt(3+sqrt(2)) ;; sqrt(3 + 2^(1/2))
\sqrt{3+\sqrt{2}} REFUSES sqrt(3)+sqrt(2) ;; sqrt(5)
\sqrt[3]{2} ACCEPTS cbrt(2) ;; 2^(1/3) ;; \sqrt[3]2 ;; 2**(1/3)
\sqrt[4]{3} ACCEPTS \sqrt[4]3 ;; 3^{1/4} ;; \sqrt[4] 3
\sqrt[4]{3} REFUSES \sqrt[3]{4} ;; \sqrt[3]3 ;; 4\sqrt3 ;; \sqrt{3}
\sqrt{\pi} ACCEPTS \sqrt\pi ;; sqrt(pi)
73 ACCEPTS **73** ;; *73* ;; `73` ;; __73__ ;; **73**. ;; $**73**$
73 REFUSES **7**3 ;; **74** ;; 7**3
343 ACCEPTS 7**3
12345 ACCEPTS \num{12345} ;; \num{12 345} ;; \num{12,345} ;; \num{1.2345e4}
12345 REFUSES \num{1234} ;; \num{12346}
5\text{ cm} ACCEPTS \SI{5}{cm} ;; \qty{5}{\centi\meter} ;; \SI{50}{\milli\meter}
60^\circ ACCEPTS \ang{60}
(-\infty, 3) ACCEPTS (-oo, 3) ;; (-inf, 3) ;; (-infinity, 3)
x \le 3 ACCEPTS x <= 3 ;; 3 >= x
x \le 3 REFUSES x < 3 ;; x >= 3
2\pi r ACCEPTS 2*pi*r ;; 2 pi r ;; 2pi r
\frac{3\pi}{4} ACCEPTS 3pi/4 ;; 3*pi/4
\arctan 2 ACCEPTS arctan(2) ;; atan(2)
\log_2 3 ACCEPTS log_2(3) ;; \log_2(3) ;; \frac{\ln 3}{\ln 2}
|x-1| ACCEPTS abs(x-1)
\lfloor x \rfloor ACCEPTS floor(x)
(-\infty,1)\cup(2,\infty) ACCEPTS (-inf,1) U (2,inf) ;; (-oo, 1) U (2, oo)
x^{10} ACCEPTS x^10 ;; x**10
x^{-10} ACCEPTS x^-10 ;; x^(-10) ;; 1/x^10 ;; x**-10
\frac{a+b}{2} ACCEPTS \frac{a+b}2 ;; (a+b)/2
\frac{1}{2} ACCEPTS \frac12 ;; \frac 1 2 ;; \frac{1}2 ;; \frac1{2}
\frac{\sqrt3}{2} ACCEPTS \frac{\sqrt3}2 ;; \frac{\sqrt{3}}{2} ;; sqrt(3)/2 ;; \frac{\sqrt 3}2 ;; \frac\sqrt32
\binom{5}{2} ACCEPTS \binom52 ;; 10
x^{\frac12} ACCEPTS x^\frac12 ;; \sqrt x
\pm 2 ACCEPTS +-2 ;; +/-2 ;; ±2
\theta ACCEPTS theta
\cos\theta ACCEPTS cos(theta) ;; cos theta
f(x)=x+c \text{ for any } c ACCEPTS f(x)=x+c ;; f(x) = x + c \text{ for any constant } c ;; x+c
f(x)=x+c \text{ for any } c ACCEPTS f(x)=x+c \text{ where } c \text{ is a constant}
f(x)=x+c REFUSES f(x)=x+2c ;; f(x)=x
x=n\pi REFUSES x=n\pi \text{ for even } n ;; x=n\pi\text{ for positive } n
n \equiv 1 \pmod{3} ACCEPTS n \equiv 1 \pmod 3 ;; n ≡ 1 (mod 3) ;; n\equiv1\pmod{3}
n \equiv 1 \pmod{3} ACCEPTS n \equiv 1 (\text{mod } 3)
n \equiv 1 \pmod{3} REFUSES n \equiv 2 \pmod{3} ;; n \equiv 1 \pmod{4} ;; 1
The answer is 5. ACCEPTS 5 ;; 5.0
The answer is 5. REFUSES 6
2+3=5, so the answer is \boxed{5}. ACCEPTS 5
2+3=5, so the answer is \boxed{5}. REFUSES 3 ;; 2
She has 2+3=5 apples.\n#### 5 ACCEPTS 5
The function is increasing on the interval. UNGRADED 5 ;; increasing
We have x=2 because 2+2=4. UNGRADED 2 ;; 4
\text{It is increasing for all x.} UNGRADED 5
There are infinitely many solutions UNGRADED 5
does not exist ACCEPTS \text{does not exist} ;; does not exist
does not exist REFUSES 5 ;; exists
\text{no solution} ACCEPTS no solution ;; \text{No solution}
no ACCEPTS \text{no}
x ACCEPTS x
\frac{n(n-1)}{2} ACCEPTS n(n-1)/2 ;; n*(n-1)/2
\sum_{k=1}^{n} k ACCEPTS n(n+1)/2
e^{i\pi/4} ACCEPTS exp(i*pi/4) ;; exp(i pi/4)
\tan^{-1} 2 ACCEPTS \arctan 2
\frac{\ln 2}{2} ACCEPTS ln(2)/2 ;; 0.5*ln(2) ;; ln(sqrt(2))
""",
}
